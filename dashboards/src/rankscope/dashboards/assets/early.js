// Runs before anything is painted, so that a dark page never flashes white.
(function () {
  // What draws the figures is the largest file by far. It runs only once Dash awaits it to draw a figure: the text of the page comes
  // first. Dash itself would load it by an address that browsers do not keep.
  var plotly = document.currentScript.dataset.plotly;
  var drawing = null;
  window.Plotly = {
    then: function (resolve, reject) {
      drawing =
        drawing ||
        new Promise(function (done, failed) {
          var script = document.createElement("script");
          script.src = plotly;
          script.onload = function () {
            window.rankscopeDrawing.order(window.Plotly);
            done();
          };
          script.onerror = function (error) {
            drawing = null; // Dash may try again
            failed(error);
          };
          document.head.append(script);
        });
      return drawing.then(resolve, reject);
    },
  };

  // Figures have the time of this browser at their axes. Finding its zone takes a while, so a known one is checked later.
  function remember() {
    try {
      var zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
      document.cookie = "rankscope-zone=" + zone + "; path=/; SameSite=Strict";
    } catch (error) {
      // They have UTC then.
    }
  }
  if (/(^|; )rankscope-zone=/.test(document.cookie)) {
    setTimeout(remember, 3000);
  } else {
    remember();
  }

  var choice = "auto";
  try {
    choice = localStorage.getItem("rankscope-scheme") || "auto";
  } catch (error) {
    // Storage can be switched off; the system's choice is a good one.
  }
  var dark = choice === "dark" || (choice === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  var scheme = dark ? "dark" : "light";
  document.documentElement.setAttribute("data-mantine-color-scheme", scheme);

  // Whether a page, or a part of one, as Dash describes it, has a figure.
  function hasFigure(part) {
    if (Array.isArray(part)) {
      return part.some(hasFigure);
    }
    return Boolean(part && part.props) && (part.type === "Graph" || hasFigure(part.props.children));
  }

  // Loads scripts that the page will run, as soon as that delays nothing else.
  function preload(scripts) {
    scripts.forEach(function (script) {
      var loading = document.createElement("link");
      loading.rel = "preload";
      loading.as = "script";
      loading.href = script;
      loading.fetchPriority = "low";
      document.head.append(loading);
    });
  }

  // The server makes the content of the page while the scripts that show it are loading.
  window.rankscopePage = {
    address: function (path, search, colors) {
      return "/api/page?" + new URLSearchParams({ path: path, search: search || "", scheme: colors });
    },
    ask: function (address) {
      return window.fetch(address, { credentials: "same-origin" }).then(function (answer) {
        if (!answer.ok) {
          throw new Error("the page was not delivered: " + answer.status);
        }
        return answer.json();
      });
    },
  };
  var address = window.rankscopePage.address(location.pathname, location.search, scheme);
  var answer = window.rankscopePage.ask(address);
  answer.then(
    function (page) {
      if (hasFigure(page.content)) {
        preload([plotly, "/_dash-component-suites/dash/dcc/async-graph.js"]);
      }
    },
    function () {} // it is asked for again
  );
  window.rankscopePage.first = { address: address, answer: answer };
})();
