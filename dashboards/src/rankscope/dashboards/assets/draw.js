// In which order figures are drawn: those in view at once, the others one by one while the browser has nothing else to do.
window.rankscopeDrawing = (function () {
  var PATIENCE_MS = 2000; // a browser that is never idle draws them all the same
  var waiting = new Map(); // element of a figure -> what is to be drawn, and who waits for it

  function whenIdle(call) {
    // Safari has no such function.
    return window.requestIdleCallback ? window.requestIdleCallback(call, { timeout: PATIENCE_MS }) : setTimeout(call, 50);
  }

  return {
    // Has what draws the figures keep this order. dcc.Graph calls `react` to draw one, and then `resize`.
    order: function (plotly) {
      var react = plotly.react;
      var resize = plotly.Plots.resize;
      var sizes = new WeakMap(); // of the figures, as they are drawn

      function size(graph) {
        return graph.clientWidth + " x " + graph.clientHeight;
      }

      function draw(graph) {
        var due = waiting.get(graph);
        if (!due) {
          return;
        }
        waiting.delete(graph);
        inView.unobserve(graph);
        var drawing = graph; // the page may have been left
        if (graph.isConnected) {
          sizes.set(graph, size(graph));
          drawing = react.apply(plotly, due.call);
        }
        due.resolves.forEach(function (resolve) {
          resolve(drawing);
        });
      }

      function drawNext() {
        draw(waiting.keys().next().value);
        if (waiting.size) {
          whenIdle(drawNext);
        }
      }

      var inView = new IntersectionObserver(function (entries) {
        entries
          .filter((entry) => entry.isIntersecting)
          .forEach((entry) => draw(entry.target));
      });
      window.addEventListener("beforeprint", function () {
        Array.from(waiting.keys()).forEach(draw);
      });

      plotly.react = function (graph) {
        if (sizes.has(graph)) {
          return react.apply(plotly, arguments); // it is drawn, and has changed
        }
        var due = waiting.get(graph) || { resolves: [] };
        due.call = arguments;
        waiting.set(graph, due);
        inView.observe(graph);
        if (waiting.size === 1) {
          whenIdle(drawNext);
        }
        return new Promise(function (resolve) {
          due.resolves.push(resolve);
        });
      };

      // Without a change of the size it would compute everything once more, to draw the same.
      plotly.Plots.resize = function (graph) {
        if (sizes.get(graph) === size(graph)) {
          return Promise.resolve(graph);
        }
        sizes.set(graph, size(graph));
        return resize(graph);
      };
    },
  };
})();
