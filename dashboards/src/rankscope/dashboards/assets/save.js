// Buttons below figures: the picture as it is shown, or the numbers behind it.
(function () {
  function saved(button) {
    var name = button.dataset.figure;
    if (button.dataset.save === "csv") {
      location.assign(location.pathname.replace(/\/$/, "") + "/data/" + name + ".csv" + location.search);
      return;
    }
    var graph = button.closest("figure").querySelector(".js-plotly-plot");
    var size = graph && graph.getBoundingClientRect();
    if (size) {
      window.Plotly.downloadImage(graph, {
        format: button.dataset.save,
        filename: ["rankscope"].concat(location.pathname.match(/^\/run\/([^/]+)/)?.[1] ?? [], name).join("-"),
        width: Math.max(640, Math.round(size.width)),
        height: Math.round(size.height),
        scale: button.dataset.save === "png" ? 2 : 1,
        setBackground: "opaque",
      });
    }
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("[data-save]");
    if (button) {
      saved(button);
    }
  });
})();
