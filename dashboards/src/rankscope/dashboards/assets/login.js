// A session has ended while its page was open: without this, the page would quietly stay as it is.
(function () {
  var ask = window.fetch;

  window.fetch = function () {
    return ask.apply(window, arguments).then(function (answer) {
      if (answer.status === 401 && answer.headers.has("X-Rankscope-Login")) {
        location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
      }
      return answer;
    });
  };
})();
