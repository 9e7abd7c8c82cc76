// Cells of a table that is saved as CSV. The same rules are in inert.py.
(function () {
  var unseen = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
  var formula = /^\s*[=+\-@＝＋－＠]/;

  function escaped(letter) {
    return "\\u{" + letter.codePointAt(0).toString(16) + "}";
  }

  window.dashAgGridFunctions = Object.assign({}, window.dashAgGridFunctions, {
    safeCell: function (value) {
      if (value === null || value === undefined) {
        return "";
      }
      if (typeof value !== "string") {
        return value;
      }
      var text = value.replace(unseen, escaped);
      return formula.test(text) ? "'" + text : text;
    },
  });
})();
