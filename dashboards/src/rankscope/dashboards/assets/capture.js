// Asking for a capture of a live run, and for a window as a file for Perfetto. Both take a while: how far they are is said aloud.
(function () {
  var EVERY_MS = 1500;
  var PATIENCE_MS = 300000;
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
        return { status: response.status, ok: response.ok, body: body };
      });
  }

  function ask(url, options) {
    return fetch(url, Object.assign({ credentials: "same-origin" }, options)).then(answered);
  }

  // What went wrong in the server's words, and what to do about it.
  function refusal(answer) {
    var said = answer.body.error ? answer.body.error + ". " : "";
    return said + (HINTS[answer.status] || (said ? "" : "The server answered " + answer.status + "."));
  }

  // One button at a time; the words go where screen readers hear them.
  function begin(button) {
    var told = button.parentElement.querySelector(".told");
    button.disabled = true;
    return {
      say: function (text) {
        if (told.textContent !== text) {
          told.textContent = text;
        }
      },
      end: function (text) {
        told.textContent = text;
        button.disabled = false;
      },
    };
  }

  function unreachable(talk) {
    return function () {
      talk.end("The server of this page cannot be reached.");
    };
  }

  function capture(button) {
    var url = button.dataset.capture;
    var steps = Number(button.parentElement.querySelector("input").value);
    var talk = begin(button);
    if (!Number.isInteger(steps) || steps < 1) {
      talk.end("How many steps? A whole number from 1 on.");
      return;
    }
    talk.say("Asking …");
    ask(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ steps: steps }),
    }).then(function (answer) {
      var id = answer.body.request_id;
      if (!answer.ok || !id) {
        talk.end(refusal(answer));
        return;
      }
      follow(url + "/" + encodeURIComponent(id), talk, Date.now() + PATIENCE_MS);
    }, unreachable(talk));
  }

  function follow(url, talk, until) {
    ask(url, {}).then(function (answer) {
      var state = answer.body.state;
      if (!answer.ok) {
        talk.end(refusal(answer));
      } else if (state === "accepted") {
        talk.end(
          "Steps " + answer.body.first_step + " to " + answer.body.last_step +
          " will be profiled. The window is in the list above once all ranks are through."
        );
      } else if (state === "refused" || state === "void") {
        talk.end("Not captured (" + state + "): " + (answer.body.reason || "no reason was given") + ".");
      } else if (Date.now() > until) {
        talk.end("No answer for five minutes. It may still come; the run may also hang.");
      } else {
        talk.say("Asked; waiting for the ranks to choose the steps …");
        setTimeout(follow, EVERY_MS, url, talk, until);
      }
    }, unreachable(talk));
  }

  function save(button) {
    var search = new URLSearchParams(location.search);
    var url = button.dataset.export + (search.get("window") ? "?window=" + encodeURIComponent(search.get("window")) : "");
    await_file(url, begin(button));
  }

  function await_file(url, talk) {
    ask(url + (url.indexOf("?") < 0 ? "?" : "&") + "ask=1", {}).then(function (answer) {
      if (!answer.ok) {
        talk.end(refusal(answer));
      } else if (answer.body.bytes === undefined) {
        talk.say(answer.body.state + " …");
        setTimeout(await_file, EVERY_MS / 2, url, talk);
      } else {
        talk.end("Saved: " + answer.body.size + ". Open it at ui.perfetto.dev with Open trace file.");
        location.assign(url);
      }
    }, unreachable(talk));
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("[data-capture], [data-export]");
    if (button && !button.disabled) {
      (button.dataset.capture ? capture : save)(button);
    }
  });
})();
