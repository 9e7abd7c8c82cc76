// The colour scheme: what was chosen, or what the system says. Figures are drawn for it, so it is the app's business, too.
(function () {
  var system = matchMedia("(prefers-color-scheme: dark)");
  var chosen = "auto";

  function resolved() {
    return chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
  }

  system.addEventListener("change", function () {
    if (chosen === "auto") {
      dash_clientside.set_props("provider", { forceColorScheme: resolved() });
      dash_clientside.set_props("scheme", { data: resolved() });
    }
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    rankscope: {
      // What somebody dragged over, or "all" after a double click; no other change of a figure's layout counts.
      zoomed: function (layout) {
        if (layout && layout["xaxis.autorange"]) {
          return "all";
        }
        if (layout && "xaxis.range[0]" in layout) {
          return [layout["xaxis.range[0]"], layout["xaxis.range[1]"]];
        }
        return dash_clientside.no_update;
      },
      saveGrid: function (clicks) {
        return Boolean(clicks);
      },
      scheme: function (choice) {
        chosen = choice || "auto";
        try {
          localStorage.setItem("rankscope-scheme", chosen);
        } catch (error) {
          // Not remembered then.
        }
        return [resolved(), resolved()];
      },
      title: function (title) {
        if (title) {
          document.title = title;
        }
        return dash_clientside.no_update;
      },
    },
  });
})();
