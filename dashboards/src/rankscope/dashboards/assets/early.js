// Runs before anything is painted, so that a dark page never flashes white.
(function () {
  // Dash asks for what draws the figures only once it has one to draw. It is the largest file by far: begin with it now. Until it
  // is there, the promise keeps Dash from loading it too.
  if (/^\/(run\/|compare|alerts|lost-hours)/.test(location.pathname)) {
    var drawing = document.createElement("script");
    drawing.src = document.currentScript.dataset.plotly;
    drawing.async = true;
    drawing.fetchPriority = "low";
    window.Plotly = new Promise(function (resolve, reject) {
      drawing.onload = resolve;
      drawing.onerror = function (error) {
        window.Plotly = undefined; // Dash may try again
        reject(error);
      };
    });
    document.head.append(drawing);
  }

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
  document.documentElement.setAttribute("data-mantine-color-scheme", dark ? "dark" : "light");
})();
