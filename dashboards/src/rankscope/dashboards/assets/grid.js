// The library of the tables is large, and few pages have one at first: it is loaded with the first table.
(function () {
  var NAME = "dash_ag_grid";
  var loading = null;

  function load() {
    loading =
      loading ||
      new Promise(function (resolve, reject) {
        var script = document.createElement("script");
        script.src = document.getElementById("library-" + NAME).getAttribute("href");
        script.onload = function () {
          var Grid = window[NAME].AgGrid;
          // The pages keep the component below: another one would draw the tables anew.
          window[NAME] = Object.assign({}, window[NAME], { AgGrid: Table });
          resolve({ default: Grid });
        };
        script.onerror = function (error) {
          loading = null;
          reject(error);
        };
        document.head.append(script);
      });
    return loading;
  }

  var Lazy = React.lazy(load);

  function Table(props) {
    return React.createElement(React.Suspense, { fallback: null }, React.createElement(Lazy, props));
  }
  Table.dashRenderType = true; // as of the library's own: Dash then says what has changed

  window[NAME] = {
    AgGrid: Table,
    getApiAsync: function (id) {
      return load().then(() => window[NAME].getApiAsync(id));
    },
  };
})();
