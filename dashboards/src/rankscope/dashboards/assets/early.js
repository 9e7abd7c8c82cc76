// Runs before anything is painted, so that a dark page never flashes white.
(function () {
  // Dash asks for what draws the figures only once it has one to draw. It is the largest file by far: begin with it now.
  if (/^\/(run\/|compare|alerts|lost-hours)/.test(location.pathname)) {
    fetch(document.currentScript.dataset.plotly, { priority: "low" }).catch(function () {});
  }

  // Figures have the time of this browser at their axes.
  try {
    var zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    document.cookie = "rankscope-zone=" + zone + "; path=/; SameSite=Strict";
  } catch (error) {
    // They have UTC then.
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
