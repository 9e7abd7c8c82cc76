// Tables: what their cells look like; of the lists, which rows in view have no verdict yet, and the columns of a narrow screen.
(function () {
  var LIVE_EVERY = 4; // ticks
  var NARROW_PX = 760;

  function grid() {
    try {
      var api = window.dash_ag_grid.getApi({ type: "grid", name: "runs" });
      return api && !api.isDestroyed() ? api : null;
    } catch (error) {
      return null; // not there yet, or not any more
    }
  }

  window.rankscopeLists = {
    // Ids of the rows in view without a verdict, and now and then those of live runs.
    missing: function (ticks) {
      var api = grid();
      return (api ? api.getRenderedNodes() : [])
        .map((node) => node.data)
        .filter((row) => row && (row.ask || (row.live && ticks % LIVE_EVERY === 0)))
        .map((row) => row.id);
    },
    update: function (rows) {
      var api = rows.length ? grid() : null;
      if (!api) {
        return;
      }
      rows.forEach(function (row) {
        var node = api.getRowNode(row.id);
        if (node) {
          node.updateData(row);
        }
      });
      // The cell of the name also shows other fields.
      api.refreshCells({ rowNodes: rows.map((row) => api.getRowNode(row.id)).filter(Boolean), columns: ["name"], force: true });
      showKnown({ api: api });
      api.refreshClientSideRowModel("filter"); // what is new may be searched for, or be the order
    },
  };

  function about(column) {
    return column.getColDef().context || {};
  }

  // Columns that few runs have a value for are shown once a row has one.
  function showKnown(params) {
    var api = params.api;
    var missing = (api.getColumns() || []).filter((column) => about(column).ifKnown && !column.isVisible());
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

  // A narrow screen has the columns that say how wide they are there.
  function fitColumns(params) {
    var api = params.api;
    var narrow = window.innerWidth < NARROW_PX;
    var isWide = api.getColumns().every((column) => column.isVisible() || column.getColDef().hide);
    if (api.rankscopeNarrow === narrow || (api.rankscopeNarrow === undefined && !narrow && isWide)) {
      return;
    }
    api.rankscopeNarrow = narrow;
    var first = api.getColumns()[0].getColId();
    var state = api.getColumns().map(function (column) {
      var def = column.getColDef();
      var width = about(column).narrow;
      return narrow
        ? { colId: column.getColId(), hide: !width, width: width, pinned: null, flex: column.getColId() === first ? 1 : null }
        : { colId: column.getColId(), hide: Boolean(def.hide), width: def.width, pinned: def.pinned || null, flex: def.flex || null };
    });
    api.applyColumnState({ state: state.concat({ colId: "ag-Grid-SelectionColumn", hide: narrow }) });
    showKnown(params);
  }

  // The arrow keys go from cell to cell; Enter opens the run of the row they are in, and in other tables does what a click does.
  document.addEventListener("keydown", function (event) {
    var cell = event.key === "Enter" && event.target.closest(".ag-cell");
    if (!cell || event.target !== cell) {
      return;
    }
    var runs = cell.closest("#runs-list");
    var row = cell.closest(".ag-row").getAttribute("row-index");
    var link = runs ? runs.querySelector('.ag-row[row-index="' + row + '"] .run-link') : cell;
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

  // Host without its domain, which would leave no room for the part that tells hosts apart; addresses stay whole.
  function place(text) {
    return text && text.replace(/^host (?!\d+\.\d)([^\s.]+)\S*/, "$1");
  }

  window.dashAgGridFunctions = Object.assign({}, window.dashAgGridFunctions, {
    localTime: (utc) => (utc ? local(utc) : ""),
    fitColumns: fitColumns,
    showKnown: showKnown,
  });

  function badge(text, tone) {
    return React.createElement("span", { className: "badge badge-" + tone, key: text }, text);
  }

  window.dashAgGridComponentFunctions = Object.assign({}, window.dashAgGridComponentFunctions, {
    // Name with its link, and below it what tells rows of one name apart, or on a narrow screen what its columns would have.
    Name: function (props) {
      var row = props.data;
      var name = row.href
        ? React.createElement(window.dash_core_components.Link, { href: row.href, className: "run-link", children: row.name, title: row.name })
        : React.createElement("span", { className: "run-link" }, row.name);
      var short = [row.simulated && "simulated", row.state_tone !== "plain" && row.state, place(row.at_fault), row.cause].filter(Boolean).join(" · ") || row.folder;
      return React.createElement(
        "span",
        { className: "cell-lines" },
        name,
        row.folder && row.folder !== row.name ? React.createElement("small", { className: "wide-only" }, row.folder) : null,
        React.createElement("small", { className: "narrow-only" }, short)
      );
    },
    Alert: function (props) {
      var row = props.data;
      var short = [place(row.at_fault), row.name].filter(Boolean).join(" · ");
      return React.createElement(
        "span",
        { className: "cell-lines" },
        React.createElement("span", null, row.alert || "-"),
        React.createElement("small", { className: "narrow-only" }, short)
      );
    },
    Place: (props) => React.createElement("span", null, place(props.value) || "-"),
    LocalTime: function (props) {
      return React.createElement("span", { title: props.value || undefined }, props.value ? local(props.value) : "-");
    },
    // Label with a tone; without one, what is missing.
    Badge: function (props) {
      var row = props.data;
      var field = props.colDef.field;
      return React.createElement(
        "span",
        { className: field === "state" ? "cell-badges stacked" : "cell-badges" },
        props.value ? badge(props.value, row[field + "_tone"]) : null,
        field === "state" && row.simulated ? badge("Simulated", "simulated") : null,
        props.value ? null : React.createElement("span", { className: "cell-text help" }, withCode(row.sentence || "Not analysed yet"))
      );
    },
    Runbook: function (props) {
      var address = props.data.runbook;
      return /^https?:\/\//i.test(address || "")
        ? React.createElement("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, "Runbook")
        : React.createElement("span", { className: "help" }, "select it");
    },
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    rankscope_lists: {
      // The list is new, or the text of its search box is.
      search: function (q, id) {
        window.dash_ag_grid.getApiAsync(id).then(function (api) {
          fitColumns({ api: api });
          api.setGridOption("quickFilterText", q || "");
        });
        return dash_clientside.no_update;
      },
    },
  });
})();
