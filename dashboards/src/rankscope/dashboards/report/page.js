// Everything a report does by itself: it draws its figures, sorts its tables, saves both, and follows the colour scheme.
(function () {
  "use strict";
  var root = document.documentElement;
  var system = matchMedia("(prefers-color-scheme: dark)");
  var chosen = "auto";
  var printing = false;
  var figures = {};

  function scheme() {
    if (printing) {
      return "light";
    }
    return chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
  }

  function paint() {
    root.setAttribute("data-mantine-color-scheme", scheme());
  }
  paint(); // before anything is seen

  async function unpacked(id) {
    var packed = atob(document.getElementById(id).textContent);
    var bytes = Uint8Array.from(packed, function (letter) {
      return letter.charCodeAt(0);
    });
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // Plotly.js as a script in the page: the policy of this file allows it by its hash, and no other.
  function run(code) {
    var script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
    if (!window.Plotly) {
      throw new Error("its scripts may not run here");
    }
  }

  function inScheme(figure) {
    var shown = structuredClone(figure.light);
    if (scheme() === "dark") {
      figure.dark.forEach(function (change) {
        var path = change[0];
        var at = shown;
        path.slice(0, -1).forEach(function (part) {
          at = at[part];
        });
        if (path.length) {
          at[path[path.length - 1]] = structuredClone(change[1]);
        } else {
          shown = structuredClone(change[1]);
        }
      });
    }
    return shown;
  }

  function draw(place) {
    var figure = figures[place.dataset.figure];
    var shown = inScheme(figure);
    if (printing) {
      shown.layout.width = Math.min(place.clientWidth || 680, 680);
    }
    return window.Plotly.react(place, shown.data, shown.layout, figure.config);
  }

  function places() {
    return Array.from(document.querySelectorAll(".plot"));
  }

  async function drawAll() {
    for (const place of places()) {
      await draw(place);
      await new Promise(function (go) {
        setTimeout(go); // the page can be read and scrolled in between
      });
    }
    root.classList.add("drawn");
  }

  function redraw() {
    paint();
    if (window.Plotly) {
      places().forEach(draw);
    }
  }

  async function begin() {
    try {
      if (!window.DecompressionStream) {
        throw new Error("this browser is too old: it has no DecompressionStream (2023 and later have)");
      }
      figures = JSON.parse(await unpacked("figures"));
      run(await unpacked("plotly"));
      await drawAll();
    } catch (error) {
      var note = document.getElementById("not-drawn");
      note.textContent = "The figures cannot be drawn: " + error.message + ". What they say stands in their places.";
      note.hidden = false;
    }
  }

  function download(name, text) {
    var link = document.createElement("a");
    // The mark tells spreadsheets that it is UTF-8.
    link.href = URL.createObjectURL(new Blob(["\ufeff" + text], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(function () {
      URL.revokeObjectURL(link.href);
    }, 10000);
  }

  function save(button) {
    var name = button.dataset.figure;
    var file = root.dataset.file + "-" + name;
    if (button.dataset.save === "csv") {
      download(file + ".csv", figures[name].csv);
      return;
    }
    var place = button.closest("figure").querySelector(".plot");
    window.Plotly.downloadImage(place, {
      format: button.dataset.save,
      filename: file,
      width: Math.max(640, Math.round(place.clientWidth)),
      height: Math.round(place.clientHeight),
      scale: button.dataset.save === "png" ? 2 : 1,
      setBackground: "opaque",
    });
  }

  // Numbers as they are shown; what is not known comes last in both directions.
  function key(cell, number) {
    var text = cell.textContent;
    if (text === "-") {
      return null;
    }
    return number ? parseFloat(text.replace(/,/g, "")) : text;
  }

  function sort(head) {
    var table = head.closest("table");
    var column = Array.from(head.parentNode.children).indexOf(head);
    var down = head.getAttribute("aria-sort") === "ascending";
    var number = head.classList.contains("n");
    table.querySelectorAll("th").forEach(function (other) {
      other.removeAttribute("aria-sort");
    });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    var rows = Array.from(table.tBodies[0].rows, function (row) {
      return [key(row.cells[column], number), row];
    });
    var words = new Intl.Collator(undefined, { numeric: true });
    rows.sort(function (first, second) {
      if (first[0] === null || second[0] === null) {
        return (first[0] === null) - (second[0] === null);
      }
      var order = number ? first[0] - second[0] : words.compare(first[0], second[0]);
      return down ? -order : order;
    });
    table.tBodies[0].append.apply(
      table.tBodies[0],
      rows.map(function (row) {
        return row[1];
      })
    );
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("button");
    if (!button) {
      return;
    }
    if (button.dataset.save && figures[button.dataset.figure]) {
      save(button);
    } else if (button.classList.contains("sort")) {
      sort(button.closest("th"));
    } else if (button.dataset.scheme) {
      chosen = button.dataset.scheme;
      document.querySelectorAll("[data-scheme]").forEach(function (choice) {
        choice.setAttribute("aria-pressed", String(choice === button));
      });
      redraw();
    }
  });

  system.addEventListener("change", redraw);

  // A figure in something closed has no size until it is opened.
  document.addEventListener(
    "toggle",
    function (event) {
      if (window.Plotly && event.target.open) {
        event.target.querySelectorAll(".js-plotly-plot").forEach(window.Plotly.Plots.resize);
      }
    },
    true
  );

  // Paper is white and does not scroll, and nothing on it can be opened.
  var closed = [];
  addEventListener("beforeprint", function () {
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    closed.forEach(function (details) {
      details.open = true;
    });
    printing = true;
    redraw();
  });
  addEventListener("afterprint", function () {
    closed.forEach(function (details) {
      details.open = false;
    });
    printing = false;
    redraw();
  });

  document.addEventListener("DOMContentLoaded", begin);
})();
