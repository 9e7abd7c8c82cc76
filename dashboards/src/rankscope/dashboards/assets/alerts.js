// The table of alerts: where its runbook is.
(function () {
  window.dashAgGridComponentFunctions = Object.assign({}, window.dashAgGridComponentFunctions, {
    AlertRunbook: function (props) {
      var address = props.data.runbook;
      return /^https?:\/\//i.test(address || "")
        ? React.createElement("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, "Runbook")
        : React.createElement("span", { className: "help" }, "select it");
    },
  });
})();
