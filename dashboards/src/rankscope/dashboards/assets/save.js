// Buttons below figures: the picture as it is shown, or the numbers behind it.
(function () {
  var EVERY_MS = 1000;
  var PATIENCE_MS = 300000;

  // The words are beside the button, where screen readers hear them.
  function say(button, text) {
    var status = button.parentElement.querySelector("[role=status]");
    if (!status) {
      status = document.createElement("span");
      status.className = "progress-text";
      status.setAttribute("role", "status");
      button.parentElement.append(status);
    }
    status.textContent = text;
  }

  function download(blob, name) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(URL.revokeObjectURL, 1000, link.href);
  }

  // The numbers may still be computed (503): the page stays, and asks again.
  function saveCsv(button, url, until) {
    return fetch(url, { credentials: "same-origin" })
      .then(
        function (answer) {
          if (answer.ok) {
            var name = /filename\*=UTF-8''([^;]+)/.exec(answer.headers.get("Content-Disposition") || "");
            return answer.blob().then(function (blob) {
              say(button, "");
              download(blob, name ? decodeURIComponent(name[1]) : "rankscope.csv");
            });
          }
          return answer.text().then(function (text) {
            say(button, text.trim());
            if (answer.status === 503 && Date.now() < until) {
              setTimeout(saveCsv, EVERY_MS, button, url, until);
            }
          });
        },
        function () {
          say(button, "The server of this page cannot be reached.");
        }
      );
  }

  function saved(button) {
    var name = button.dataset.figure;
    if (button.dataset.save === "csv") {
      var url = location.pathname.replace(/\/$/, "") + "/data/" + name + ".csv" + location.search;
      saveCsv(button, url, Date.now() + PATIENCE_MS);
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
