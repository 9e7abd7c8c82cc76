// What a page asks for while it is open. One timer: it asks what has changed, and has drawn again what depends on it.
(function () {
  var PATIENCE_MS = 15000;
  var asked = { number: 0, at: 0 };
  var drawing = 0;
  var clicked = false; // a button that starts work of the page; the next question tells the server
  var live = null; // last step of a live run, and when it was written
  var fields = {}; // those of the address for which the page is drawn
  var drawnIn = ""; // colour scheme of the figures

  function draw(element) {
    drawing += 1;
    dash_clientside.set_props(JSON.parse(element.id), { "data-draw": String(drawing) });
  }

  function drawable() {
    return Array.from(document.querySelectorAll("[data-draws]"));
  }

  function redrawIn(scheme) {
    if (drawnIn && scheme && scheme !== drawnIn) {
      drawnIn = scheme;
      document.querySelectorAll('[data-draws="says"]').forEach(draw);
    }
  }

  // Whether a block is still being computed, and has been answered since it was asked for last.
  function waits(element) {
    var isAsked = element.hasAttribute("data-dash-is-loading");
    return !isAsked && (element.hasAttribute("data-waits") || element.querySelector("[data-waits]") !== null);
  }

  function read(search) {
    return Object.fromEntries(new URLSearchParams(search || ""));
  }

  function ago(seconds) {
    if (seconds < 60) {
      return Math.floor(seconds) + " s ago";
    }
    return seconds < 3600 ? Math.floor(seconds / 60) + " min ago" : Math.floor(seconds / 3600) + " h ago";
  }

  function showAge() {
    var line = document.getElementById("run-live");
    if (line) {
      var step = live && (live.step === null ? "no step yet" : "step " + live.step.toLocaleString("en"));
      line.hidden = !live;
      line.textContent = live ? step + ", written " + ago(live.age_s + (Date.now() - live.at) / 1000) : "";
    }
  }

  function hear(state) {
    live = state.live ? Object.assign({ at: Date.now() }, state.live) : null;
    showAge();
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    rankscope_page: {
      // Returns content, title and state of the page of an address; early.js has asked for the first.
      open: function (path, _again, search) {
        var pages = window.rankscopePage;
        var scheme = document.documentElement.getAttribute("data-mantine-color-scheme");
        var address = pages.address(path, search, scheme);
        var first = pages.first;
        pages.first = null;
        var again = () => pages.ask(address);
        return (first && first.address === address ? first.answer.catch(again) : again()).then(function (page) {
          return [page.content, page.title, Object.assign({ scheme: scheme }, page.shown)];
        });
      },
      // Returns the next question; one at a time.
      tick: function (ticks, shown, answer) {
        if (!shown || shown.path !== window.location.pathname) {
          return dash_clientside.no_update; // another page is on its way
        }
        drawable().filter(waits).forEach(draw);
        showAge();
        var rows = window.rankscopeLists.missing(ticks);
        var due = shown.every_ms && Date.now() - asked.at >= shown.every_ms;
        var open = asked.number && !(answer && answer.number === asked.number) && Date.now() - asked.at < PATIENCE_MS;
        if (open || !(due || rows.length || clicked)) {
          return dash_clientside.no_update;
        }
        asked = { number: asked.number + 1, at: Date.now() };
        var about = { path: shown.path, search: window.location.search, whole: shown.whole };
        var question = Object.assign(about, { number: asked.number, rows: rows, work: clicked });
        clicked = false;
        return question;
      },
      distribute: function (answer, shown) {
        if (!answer || !shown || answer.path !== shown.path) {
          return;
        }
        window.rankscopeLists.update(answer.rows || []);
        if ("note" in answer && document.getElementById("page-note")) {
          dash_clientside.set_props("page-note", { children: answer.note });
        }
        if ("live" in answer) {
          hear(answer);
        }
        if (!("version" in answer) || answer.version === shown.version) {
          return;
        }
        if (shown.whole) {
          dash_clientside.set_props("again", { data: answer.number });
        } else {
          var every = "every_ms" in answer ? answer.every_ms : shown.every_ms;
          var now = { version: answer.version, every_ms: every, drawn: answer.number };
          dash_clientside.set_props("shown", { data: Object.assign({}, shown, now) });
        }
      },
      // A page is new, or its version is: then all of it is drawn again.
      isShown: function (shown) {
        if (shown && shown.drawn) {
          drawable().forEach(draw);
          return;
        }
        fields = read(window.location.search);
        clicked = false;
        asked.at = Date.now();
        hear(shown || {});
        // The scheme may have changed since the page was asked for.
        drawnIn = shown ? shown.scheme : "";
        redrawIn(document.documentElement.getAttribute("data-mantine-color-scheme"));
      },
      // The address has changed: what reads a changed field is drawn again.
      isAt: function (search) {
        var before = fields;
        fields = read(search);
        var changed = Object.keys(Object.assign({}, before, fields)).filter((name) => before[name] !== fields[name]);
        drawable()
          .filter(function (element) {
            var reads = element.dataset.reads;
            return changed.length && (reads === undefined || reads.split(" ").some((name) => changed.includes(name)));
          })
          .forEach(draw);
      },
      isIn: function (scheme) {
        redrawIn(scheme);
      },
    },
  });

  document.addEventListener("click", function (event) {
    clicked = clicked || event.target.closest("[data-work]") !== null;
  });

  // Browsers slow the timers of hidden tabs down to one a minute: a tab that is shown again asks at once.
  document.addEventListener("visibilitychange", function () {
    if (!document.hidden) {
      asked.at = 0;
      dash_clientside.set_props("poll", { n_intervals: Date.now() });
    }
  });
})();
