// Asking for a capture of a live run, and for a window, as a file or opened in Perfetto. How far they are is read aloud.
(function () {
  var EVERY_MS = 1500;
  var PATIENCE_MS = 300000;
  var GREETING_MS = 60000;
  var HINTS = {
    401: "Sign in first: the dashboard's start said how, or its token is in the address it printed.",
    403: "Not allowed. Whoever started the dashboard must switch captures on; the command below works without it.",
    404: "This dashboard does not take requests for captures; the command below works without it.",
    405: "This dashboard does not take requests for captures; the command below works without it.",
    409: "The run does not go on.",
  };

  function answered(response) {
    return response
      .json()
      .catch(function () {
        return {};
      })
      .then(function (body) {
        var status = response.redirected ? 401 : response.status; // to the login
        return { status: status, ok: status < 400, body: body };
      });
  }

  function unreachable() {
    return Promise.reject("The server of this page cannot be reached.");
  }

  function ask(url, options) {
    return fetch(url, Object.assign({ credentials: "same-origin" }, options)).then(answered, unreachable);
  }

  // What went wrong in the server's words, and what to do about it.
  function refusal(answer) {
    var reason = answer.body.error ? answer.body.error + ". " : "";
    return reason + (HINTS[answer.status] || (reason ? "" : "The server answered " + answer.status + "."));
  }

  // One button at a time; the words go where screen readers hear them.
  function begin(button) {
    var status = button.parentElement.querySelector(".progress-text");
    var buttons = button.parentElement.querySelectorAll("button");
    function disable(off) {
      buttons.forEach(function (item) {
        item.disabled = off;
      });
    }
    disable(true);
    return {
      say: function (text) {
        if (status.textContent !== text) {
          status.textContent = text;
        }
      },
      end: function (text) {
        status.textContent = text;
        disable(false);
      },
    };
  }

  function capture(button) {
    var url = button.dataset.capture;
    var steps = Number(button.parentElement.querySelector("input").value);
    var progress = begin(button);
    if (!Number.isInteger(steps) || steps < 1) {
      progress.end("How many steps? A whole number from 1 on.");
      return;
    }
    progress.say("Asking …");
    ask(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ steps: steps }),
    }).then(function (answer) {
      var id = answer.body.request_id;
      if (!answer.ok || !id) {
        progress.end(refusal(answer));
        return;
      }
      follow(url + "/" + encodeURIComponent(id), progress, Date.now() + PATIENCE_MS);
    }, progress.end);
  }

  function follow(url, progress, until) {
    ask(url, {}).then(function (answer) {
      var state = answer.body.state;
      if (!answer.ok) {
        progress.end(refusal(answer));
      } else if (state === "accepted") {
        progress.end(
          "Steps " + answer.body.first_step + " to " + answer.body.last_step +
          " will be profiled. The window is in the list above once all ranks are through."
        );
      } else if (state === "refused" || state === "void") {
        progress.end("Not captured (" + state + "): " + (answer.body.reason || "no reason was given") + ".");
      } else if (Date.now() > until) {
        progress.end("No answer for five minutes. It may still come; the run may also hang.");
      } else {
        progress.say("Asked; waiting for the ranks to choose the steps …");
        setTimeout(follow, EVERY_MS, url, progress, until);
      }
    }, progress.end);
  }

  function exportAddress(button) {
    var search = new URLSearchParams(location.search);
    var url = button.parentElement.querySelector("[data-export]").dataset.export;
    return url + (search.get("window") ? "?window=" + encodeURIComponent(search.get("window")) : "");
  }

  // Resolves to what the server says about the file once it is written.
  function whenWritten(url, progress) {
    return ask(url + (url.indexOf("?") < 0 ? "?" : "&") + "ask=1", {}).then(function (answer) {
      if (!answer.ok) {
        return Promise.reject(answer.body.error ? answer.body.error + "." : refusal(answer));
      }
      if (answer.body.bytes !== undefined) {
        return answer.body;
      }
      progress.say(answer.body.state + " …");
      return new Promise(function (resolve) {
        setTimeout(resolve, EVERY_MS / 2);
      }).then(function () {
        return whenWritten(url, progress);
      });
    });
  }

  function save(button) {
    var url = exportAddress(button);
    var progress = begin(button);
    whenWritten(url, progress).then(function (file) {
      progress.end("Saved: " + file.size + ". Open it in Perfetto with Open trace file.");
      location.assign(url);
    }, progress.end);
  }

  // The protocol of https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
  function openInPerfetto(button) {
    var url = exportAddress(button);
    var origin = new URL(button.dataset.perfetto).origin;
    var progress = begin(button);
    var tab = window.open(button.dataset.perfetto); // at once: browsers block tabs that do not come from a click
    if (!tab) {
      progress.end("The browser blocked the new tab. Allow pop-ups for this page, or save the window and open the file in Perfetto.");
      return;
    }
    whenWritten(url, progress)
      .then(function (file) {
        return fetch(url).then(function (response) {
          return response.ok ? response.arrayBuffer() : Promise.reject("The server answered " + response.status + ".");
        }, unreachable).then(function (buffer) {
          return { buffer: buffer, title: file.title, fileName: file.file };
        });
      })
      .then(
        function (trace) {
          progress.say("Waiting for Perfetto in the new tab …");
          greet(tab, origin, function () {
            tab.postMessage({ perfetto: trace }, origin);
            progress.end("Opened in the new tab.");
          }, function () {
            progress.end("Perfetto at " + origin + " did not answer. Save the window and open it there with Open trace file.");
          });
        },
        function (reason) {
          tab.close();
          progress.end(reason);
        }
      );
  }

  // Calls ready once a page of that origin answers in the tab. Before that, nothing of the run is sent.
  function greet(tab, origin, ready, failed) {
    var until = Date.now() + GREETING_MS;
    function onMessage(event) {
      if (event.source === tab && event.origin === origin && event.data === "PONG") {
        end(ready);
      }
    }
    function end(next) {
      clearInterval(timer);
      window.removeEventListener("message", onMessage);
      next();
    }
    window.addEventListener("message", onMessage);
    var timer = setInterval(function () {
      if (tab.closed || Date.now() > until) {
        end(failed);
      } else {
        tab.postMessage("PING", "*"); // the tab may still be on its way to that origin
      }
    }, 250);
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("[data-capture], [data-export], [data-perfetto]");
    if (button && !button.disabled) {
      (button.dataset.capture ? capture : button.dataset.perfetto ? openInPerfetto : save)(button);
    }
  });
})();
