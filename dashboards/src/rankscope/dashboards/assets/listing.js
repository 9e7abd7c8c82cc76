// Tables that fill a page: search, sort order and selection. The address has the say: what somebody chooses is written to it at
// once, and the table follows it. Whatever else changes the table, such as Dash's late echo of an earlier state, is undone.
(function () {
  var CHOSEN = ["uiColumnSorted", "checkboxSelected", "rowClicked", "spaceKey", "uiSelectAll", "keyboardSelectAll"];
  var ECHO_MS = 50;

  // The state in an address; model/list_state.py reads and writes the same.
  function read() {
    var given = {};
    window.location.search
      .slice(1)
      .split("&")
      .forEach((part) => (given[part.split("=")[0]] = part.split("=")[1] || ""));
    var sort = given.sort || "";
    return {
      q: decoded(given.q),
      sort: sort.replace(/^-/, ""),
      descending: sort.startsWith("-"),
      picked: (given.picked || "").split(",").map(decoded).filter(Boolean), // still encoded until here: an id may contain a comma
    };
  }

  function written(state) {
    var values = {
      q: encodeURIComponent(state.q),
      sort: state.sort && (state.descending ? "-" : "") + state.sort,
      picked: state.picked.map(encodeURIComponent).join(","),
    };
    var parts = Object.keys(values).filter((name) => values[name]);
    return parts.length ? "?" + parts.map((name) => name + "=" + values[name]).join("&") : "";
  }

  function decoded(text) {
    return new URLSearchParams("text=" + (text || "")).get("text");
  }

  // Whether the address is of the table's page: somebody who leaves it still sees the table for a moment.
  function here(table) {
    var list = document.getElementById(table + "-list");
    return Boolean(list) && list.dataset.path === window.location.pathname;
  }

  function choose(table, choice) {
    if (!here(table)) {
      return;
    }
    var now = written(read());
    var search = written(Object.assign(read(), choice));
    if (search !== now) {
      window.history.pushState({}, "", window.location.pathname + search);
      window.dispatchEvent(new CustomEvent("_dashprivate_pushstate")); // as Dash's links do
    }
  }

  function sorted(api) {
    var column = api.getColumnState().find((one) => one.sort);
    return { sort: column ? column.colId : "", descending: Boolean(column) && column.sort === "desc" };
  }

  function selected(api) {
    return api.getSelectedNodes().map((node) => node.id);
  }

  // Runs are compared in the order in which they were selected.
  function inOrder(ids) {
    var before = read().picked.filter((id) => ids.includes(id));
    return before.concat(ids.filter((id) => !before.includes(id)));
  }

  function follow(table, api) {
    if (api.isDestroyed() || !here(table)) {
      return;
    }
    var state = read();
    if (api.getGridOption("quickFilterText") !== state.q) {
      api.setGridOption("quickFilterText", state.q);
    }
    var order = sorted(api);
    if (order.sort !== state.sort || order.descending !== state.descending) {
      var column = { colId: state.sort, sort: state.descending ? "desc" : "asc" };
      api.applyColumnState({ state: state.sort ? [column] : [], defaultState: { sort: null } });
    }
    var single = api.getGridOption("rowSelection").mode === "singleRow";
    var wanted = state.picked
      .slice(0, single ? 1 : undefined)
      .map((id) => api.getRowNode(id))
      .filter((node) => node && node.selectable);
    var others = api.getSelectedNodes().filter((node) => !wanted.includes(node));
    api.setNodesSelected({ nodes: others, newValue: false });
    api.setNodesSelected({ nodes: wanted.filter((node) => !node.isSelected()), newValue: true });
  }

  function listen(table, api) {
    function changed(choice) {
      return function (event) {
        if (CHOSEN.includes(event.source)) {
          choose(table, choice(api));
        } else {
          window.setTimeout(() => follow(table, api), ECHO_MS);
        }
      };
    }
    api.addEventListener("sortChanged", changed(sorted));
    api.addEventListener("selectionChanged", changed((grid) => ({ picked: inOrder(selected(grid)) })));
    api.addEventListener("rowDataUpdated", changed());
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    rankscope_listing: {
      // The address has changed, or the table is new. Returns what its search box shows.
      follow: function (_search, id, shown) {
        var table = id.replace(/-address$/, "");
        window.dash_ag_grid.getApiAsync(table + "-grid").then(function (api) {
          if (!api.rankscopeListens) {
            api.rankscopeListens = true;
            listen(table, api);
          }
          follow(table, api);
        });
        var q = read().q;
        return here(table) && q !== shown ? q : dash_clientside.no_update;
      },
      look_for: function (q, id) {
        choose(id.replace(/-q$/, ""), { q: q || "" });
      },
    },
  });
})();
