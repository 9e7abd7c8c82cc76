// The list of runs: what its cells look like, and which of the rows in view have no verdict yet.
(function () {
  var LIVE_EVERY = 3; // looks
  var PATIENCE_MS = 15000;
  var NARROW_PX = 760;
  var NARROW = ["name", "state", "verdict"];
  var asked = { number: 0, at: 0 };

  function grid() {
    try {
      return window.dash_ag_grid.getApi("runs-grid");
    } catch (error) {
      return null; // not there yet, or not any more
    }
  }

  // With fewer columns on a narrow screen: name, state, verdict.
  function fit(api) {
    var now = window.innerWidth < NARROW_PX;
    if (api.rankscopeNarrow === now) {
      return;
    }
    api.rankscopeNarrow = now;
    api.rankscopeColumns = api.rankscopeColumns || api.getColumnState();
    var narrow = api.rankscopeColumns
      .filter((column) => NARROW.includes(column.colId))
      .map((column) => Object.assign({}, column, column.colId === "verdict" ? {} : { pinned: null, width: 112 }))
      .sort((one, other) => NARROW.indexOf(one.colId) - NARROW.indexOf(other.colId));
    var others = api.rankscopeColumns
      .filter((column) => !NARROW.includes(column.colId))
      .map((column) => Object.assign({}, column, { hide: !column.colId.startsWith("ag-Grid") }));
    api.applyColumnState({ state: (now ? narrow.concat(others) : api.rankscopeColumns).map(withoutOrder), applyOrder: true });
  }

  // Columns that few runs have a value for are shown once a row has one.
  function showKnown(api) {
    var missing = (api.getColumns() || []).filter((column) => (column.getColDef().context || {}).ifKnown && !column.isVisible());
    if (!missing.length || api.rankscopeNarrow) {
      return;
    }
    var known = new Set();
    api.forEachNode(function (node) {
      missing.forEach((column) => node.data && node.data[column.getColId()] != null && known.add(column.getColId()));
    });
    if (known.size) {
      api.setColumnsVisible(Array.from(known), true);
    }
  }

  // How the rows are ordered is told by the address.
  function withoutOrder(column) {
    var left = Object.assign({}, column);
    delete left.sort;
    delete left.sortIndex;
    return left;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    rankscope_runs: {
      look: function (looks, answer) {
        var api = grid();
        if (!api || api.isDestroyed()) {
          return dash_clientside.no_update;
        }
        fit(api);
        showKnown(api);
        if (asked.number && !(answer && answer.number === asked.number) && Date.now() - asked.at < PATIENCE_MS) {
          return dash_clientside.no_update; // one question at a time
        }
        var ids = api
          .getRenderedNodes()
          .map((node) => node.data)
          .filter((row) => row && (row.ask || (row.live && looks % LIVE_EVERY === 0)))
          .map((row) => row.id);
        if (!ids.length) {
          return dash_clientside.no_update;
        }
        asked = { number: looks, at: Date.now() };
        return { number: looks, ids: ids };
      },
      tell: function (answer) {
        var api = grid();
        if (!api || api.isDestroyed()) {
          return;
        }
        answer.rows.forEach(function (row) {
          var node = api.getRowNode(row.id);
          if (node) {
            node.updateData(row);
          }
        });
        api.refreshClientSideRowModel("filter"); // what was told may be searched for, or be the order
      },
    },
  });

  // The arrow keys go from cell to cell; Enter opens the run of the row they are in, and in other tables does what a click does.
  document.addEventListener("keydown", function (event) {
    var cell = event.key === "Enter" && event.target.closest(".ag-cell");
    if (!cell || event.target !== cell) {
      return;
    }
    var row = cell.closest(".ag-row").getAttribute("row-index");
    var link = cell.closest("#runs-grid") ? document.querySelector('#runs-grid .ag-row[row-index="' + row + '"] .run-link') : cell;
    if (link) {
      link.click();
    }
  });

  // Code in backticks as code, as on the pages.
  function withCode(text) {
    return text.split(/`([^`]+)`/).map((part, at) => (at % 2 ? React.createElement("code", { key: at }, part) : part));
  }

  function local(utc) {
    var at = new Date(utc.replace(" UTC", "Z").replace(" ", "T"));
    // Swedish dates are written as ISO 8601 dates.
    return isNaN(at) ? utc : at.toLocaleString("sv");
  }

  window.dashAgGridFunctions = Object.assign({}, window.dashAgGridFunctions, {
    localTime: (utc) => (utc ? local(utc) : ""),
  });

  function badge(text, tone) {
    return React.createElement("span", { className: "badge badge-" + tone }, text);
  }

  window.dashAgGridComponentFunctions = Object.assign({}, window.dashAgGridComponentFunctions, {
    RunName: function (props) {
      var row = props.data;
      return row.href
        ? React.createElement(window.dash_core_components.Link, { href: row.href, className: "run-link", children: row.name, title: row.name })
        : React.createElement("span", null, row.name);
    },
    LocalTime: function (props) {
      return React.createElement("span", { title: props.value || undefined }, props.value ? local(props.value) : "-");
    },
    Marked: function (props) {
      return React.createElement("span", null, withCode(props.value || "-"));
    },
    RunState: function (props) {
      var row = props.data;
      return React.createElement(
        "span",
        { className: "cell-badges" },
        badge(row.state, row.state_tone),
        row.simulated ? badge("Simulated", "simulated") : null
      );
    },
    RunVerdict: function (props) {
      var row = props.data;
      return React.createElement(
        "span",
        { className: "cell-badges" },
        row.kind ? badge(row.kind, row.tone) : null,
        React.createElement("span", { className: row.kind ? "cell-text" : "cell-text help" }, withCode(row.verdict || "Not analysed yet"))
      );
    },
  });
})();
