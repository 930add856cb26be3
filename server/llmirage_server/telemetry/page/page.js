// The live page: reads /llmirage/live, an endless stream of states, and shows each. Texts are set as text, never as HTML.
(function () {
  "use strict";
  var KEPT_S = 120, ROWS = 100, RUNNING_ROWS = 30, history = [], requests = new Map(), server = null, faultKinds = {}, shownFaults = "[]", retryMs = 500;
  function $(id) { return document.getElementById(id); }
  function recall() { try { return sessionStorage.getItem("llmirage-key") || ""; } catch (e) { return ""; } }
  function keep(key) { try { sessionStorage.setItem("llmirage-key", key); } catch (e) { /* not kept */ } }
  var key = recall();

  function make(name, attributes, ...children) {
    var node = document.createElement(name);
    Object.entries(attributes || {}).forEach(function (pair) { node.setAttribute(pair[0], pair[1]); });
    node.append(...children);
    return node;
  }

  function count(n) { return Math.round(n).toLocaleString("en-US"); }
  function rate(n) { return n >= 100 ? count(n) : n.toFixed(n >= 10 ? 1 : 2); }
  function percent(share) { return (100 * share).toFixed(share && share < 0.1 ? 1 : 0) + " %"; }
  function firstToken(entry) { return typeof entry.ttft_ms === "number" ? entry.ttft_ms / 1000 : null; }
  function seconds(s) {
    if (s === null || s === undefined) { return ""; }
    return s < 1 ? (1000 * s).toFixed(s < 0.01 ? 2 : 0) + " ms" : s.toFixed(s < 100 ? 2 : 0) + " s";
  }
  function median(values) {
    var sorted = values.slice().sort(function (a, b) { return a - b; }), n = sorted.length;
    return n ? (sorted[Math.floor((n - 1) / 2)] + sorted[Math.ceil((n - 1) / 2)]) / 2 : null;
  }

  async function call(method, path, body) {
    var headers = key ? { authorization: "Bearer " + key } : {};
    if (body !== undefined) { headers["content-type"] = "application/json"; }
    var response = await fetch(path, { method: method, headers: headers, body: body === undefined ? undefined : JSON.stringify(body) });
    if (!response.ok) {
      var said = await response.json().catch(function () { return {}; });
      var error = new Error((said.error && said.error.message) || response.status + " " + response.statusText);
      error.status = response.status;
      throw error;
    }
    return response;
  }

  function status(text, css) { $("link").textContent = text; $("link").className = "state " + (css || ""); }

  async function watch() {
    for (;;) {
      try {
        var response = await call("GET", "/llmirage/live");
        var reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), rest = "";
        $("login").hidden = true; $("live").hidden = false; status("live", "good"); retryMs = 500;
        loadFaultKinds().catch(function (error) { say(error.message); });
        for (;;) {
          var part = await reader.read();
          if (part.done) { break; }
          var events = (rest + part.value).split("\n\n");
          rest = events.pop();
          events.forEach(function (event) {
            if (event.startsWith("data: ")) { show(JSON.parse(event.slice(6))); }
          });
        }
        status("ended; connecting again", "bad");
      } catch (error) {
        if (error.status === 401) { status("locked", "bad"); $("login").hidden = false; $("live").hidden = true; return; }
        status(error.status ? error.message : "no connection; trying again", "bad");
      }
      await new Promise(function (done) { setTimeout(done, retryMs); });
      retryMs = Math.min(2 * retryMs, 10000);
    }
  }

  function show(state) {
    if (state.server) { server = state.server; history = []; requests.clear(); showServer(); }
    history.push(state);
    while (history.length > 2 && state.at_s - history[0].at_s > KEPT_S) { history.shift(); }
    state.requests.forEach(function (entry) { requests.set(entry.number, entry); });
    forget(function (entry) { return entry.outcome === "running"; }, RUNNING_ROWS);
    forget(function (entry) { return entry.outcome !== "running"; }, ROWS);
    showCards(state);
    charts(state);
    showInstances(state);
    showSteps(state.step_shares);
    showFaults(state.faults);
    if (state.requests.length || state.server) { showRequests(); }
    if (document.activeElement !== $("speed")) { $("speed").value = state.speed === "max" ? "" : state.speed; }
    $("speed-form").hidden = state.speed === "max";
  }

  // Keep the newest requests of one kind. A running one that was forgotten comes back when it ends.
  function forget(of, most) {
    var numbers = Array.from(requests.values()).filter(of).map(function (entry) { return entry.number; });
    numbers.sort(function (a, b) { return b - a; }).slice(most).forEach(function (number) { requests.delete(number); });
  }

  function showServer() {
    $("title").textContent = server.models.join(", ");
    document.title = "llmirage: " + server.models[0];
    var facts = $("facts");
    facts.replaceChildren();
    Object.entries(server.facts).forEach(function (pair) {
      facts.append(make("dt", {}, pair[0]), make("dd", {}, pair[1]));
    });
  }

  // What grew between two states, by second. The page's figures are those of the last five seconds.
  function grown(from, to, name) {
    var passed = to.at_s - from.at_s;
    return passed > 0 ? Math.max(0, to.totals[name] - from.totals[name]) / passed : 0;
  }
  function earlier(state) {
    return history.find(function (old) { return state.at_s - old.at_s <= 5; }) || state;
  }
  function sum(state, name) { return state.instances.reduce(function (total, one) { return total + one[name]; }, 0); }

  function showCards(state) {
    var then = earlier(state), list = Array.from(requests.values());
    var first = list.map(firstToken).filter(function (s) { return typeof s === "number"; });
    var gaps = list.filter(function (entry) { return entry.duration_s > firstToken(entry) && entry.output_tokens > 1; }).map(
      function (entry) { return (entry.duration_s - firstToken(entry)) / (entry.output_tokens - 1); });
    var hits = sum(state, "hit_tokens"), queries = sum(state, "query_tokens");
    var cards = [
      ["Output tokens", rate(grown(then, state, "tokens")), "/s", count(state.totals.tokens) + " in all"],
      ["Requests", rate(grown(then, state, "requests")), "/s", count(state.totals.requests) + " in all"],
      ["Running, waiting", count(sum(state, "running")) + ", " + count(sum(state, "waiting")), "", ""],
      ["TTFT", seconds(median(first)) || "–", "", "median of the last " + ROWS],
      ["TPOT", seconds(median(gaps)) || "–", "", "median of the last " + ROWS],
      ["Prefix cache hits", queries ? percent(hits / queries) : "–", "", "of prompt tokens"],
    ];
    $("cards").replaceChildren(...cards.map(function (card) {
      var value = make("div", { class: "value" }, card[1] + " ", make("small", {}, card[2]));
      return make("div", { class: "card" }, make("div", { class: "label" }, card[0]), value, make("div", { class: "hint" }, card[3]));
    }));
  }

  function charts(state) {
    var rates = history.slice(1).map(function (now, i) { return [now.at_s, grown(history[Math.max(0, i - 3)], now, "tokens")]; });
    draw("tokens", state.at_s, [rates], function (most) { return count(most) + " /s at most"; });
    draw("load", state.at_s, ["running", "waiting"].map(function (name) {
      return history.map(function (one) { return [one.at_s, sum(one, name)]; });
    }), function (most) { return count(most) + " at most"; });
  }

  function draw(id, end, series, words) {
    var most = Math.max(1, ...series.map(function (points) { return Math.max(0, ...points.map(function (p) { return p[1]; })); }));
    var paths = [];
    series.forEach(function (points, i) {
      if (!points.length) { return; }
      var places = points.map(function (p) {
        return (600 * (1 - (end - p[0]) / KEPT_S)).toFixed(1) + " " + (116 - 110 * p[1] / most).toFixed(1);
      });
      var line = "M" + places.join("L"), number = i + 1;
      if (series.length === 1) {
        paths.push(path("area1", line + "V118H" + places[0].split(" ")[0] + "Z"));
      }
      paths.push(path("line" + number, line));
    });
    $(id).replaceChildren(...paths);
    $(id + "-scale").textContent = words(most);
  }
  function path(css, shape) {
    var node = document.createElementNS("http://www.w3.org/2000/svg", "path");
    node.setAttribute("class", css);
    node.setAttribute("d", shape);
    return node;
  }

  function bar(parts) {
    return make("div", { class: "bar" }, ...parts.map(function (part) {
      var piece = make("i", { class: part[0] });
      piece.style.width = (100 * Math.min(1, Math.max(0, part[1]))).toFixed(2) + "%";
      return piece;
    }));
  }

  function showInstances(state) {
    $("scaling").textContent = state.scaling.join("; ");
    var then = earlier(state), before = new Map(then.instances.map(function (one) { return [one.index, one]; }));
    $("instances").replaceChildren(...state.instances.map(function (one) {
      var old = before.get(one.index) || one, asked = one.query_tokens - old.query_tokens;
      var share = asked > 0 ? (one.hit_tokens - old.hit_tokens) / asked : one.query_tokens ? one.hit_tokens / one.query_tokens : 0;
      var used = one.kv_total ? one.kv_used / one.kv_total : 0;
      var rest = one.kv_total ? Math.max(0, one.kv_cached / one.kv_total) : 0;
      var rows = [
        ["batch", [["c1", one.running / one.most]], count(one.running) + " of " + count(one.most)],
        ["queue", [["c2", one.waiting / one.most]], count(one.waiting)],
        ["KV memory", [["c4", used], ["c4 faint", Math.min(rest, 1 - used)]], percent(used)],
        ["cache hits", [["c3", share]], percent(share)],
      ];
      var list = make("dl", {});
      rows.forEach(function (row) { list.append(make("dt", {}, row[0]), bar(row[1]), make("dd", {}, row[2])); });
      var note = one.state === "up" ? (one.preemptions ? count(one.preemptions) + " preemptions" : "") : one.state;
      var name = (one.pool ? one.pool + " " : "instance ") + one.index;
      return make("section", { class: "instance" }, make("h3", {}, name, make("span", { class: "muted" }, note)), list);
    }));
  }

  function showSteps(shares) {
    var names = Object.keys(shares);
    $("no-steps").hidden = names.length > 0;
    if (!names.length) { $("steps").replaceChildren(); return; }
    var legend = make("div", { class: "legend" }, ...names.map(function (name, i) {
      return make("span", {}, make("i", { class: "key c" + (i + 1) % 7 }), name + " " + percent(shares[name]));
    }));
    $("steps").replaceChildren(bar(names.map(function (name, i) { return ["c" + (i + 1) % 7, shares[name]]; })), legend);
  }

  function cell(name, text, css) { return make("td", { "data-name": name, class: css || "right" }, text); }

  // Only rows that changed are made anew, so that what a reader opened or selected stays as it is.
  function showRequests() {
    var body = $("requests"), rows = new Map(Array.from(body.children).map(function (row) { return [Number(row.dataset.number), row]; }));
    var numbers = Array.from(requests.keys()).sort(function (a, b) { return b - a; });
    numbers.forEach(function (number, place) {
      var entry = requests.get(number), version = JSON.stringify(entry), row = rows.get(number);
      if (!row || row.version !== version) {
        var open = row && row.querySelector("details").open, made = requestRow(entry);
        made.version = version;
        if (open) { made.querySelector("details").open = true; }
        if (row) { row.replaceWith(made); }
        row = made;
      }
      rows.delete(number);
      if (body.children[place] !== row) { body.insertBefore(row, body.children[place] || null); }
    });
    rows.forEach(function (row) { row.remove(); });
    filter();
    $("none").hidden = numbers.length > 0;
  }

  function requestRow(entry) {
    var details = make("details", {}, make("summary", {}, entry.user || entry.error || entry.method + " " + entry.path));
    var list = make("dl", {}), texts = [["system", entry.system], ["user", entry.user]];
    entry.results.forEach(function (result) { texts.push(["result of " + result.name, result.content]); });
    texts.push(["error", entry.error], ["reply", entry.reply]);
    entry.calls.forEach(function (one) { texts.push(["call of " + one.name, one.arguments]); });
    texts.push(["model", entry.model], ["finish reason", entry.finish_reason], ["client", entry.client]);
    texts.forEach(function (pair) { if (pair[1]) { list.append(make("dt", {}, pair[0]), make("dd", {}, pair[1])); } });
    details.append(list);
    details.addEventListener("toggle", function () { if (details.open && !details.whole) { showWhole(details, entry); } });
    var bad = entry.status >= 400 || entry.outcome === "failed" || entry.outcome === "cut";
    var told = entry.outcome === "complete" ? String(entry.status) : entry.outcome.replace("_", " ");
    var path = entry.path.replace(/^\/v1/, "");
    return make("tr", { "data-number": entry.number },
      cell("#", String(entry.number)), cell("", path, "left"), make("td", { class: "left prompt" }, details),
      cell("", told, bad ? "bad" : entry.outcome === "client_left" ? "warn" : "right"),
      cell("in", entry.prompt_tokens ? count(entry.prompt_tokens) : ""), cell("cached", entry.prompt_tokens ? count(entry.cached_tokens) : ""),
      cell("out", entry.output_tokens ? count(entry.output_tokens) : ""), cell("TTFT", seconds(firstToken(entry))),
      cell("took", seconds(entry.duration_s)), causes(entry));
  }

  // The whole request and reply, asked for with a click.
  function showWhole(details, entry) {
    details.whole = make("dl", {});
    details.append(details.whole);
    call("GET", "/llmirage/journal/" + entry.number).then(function (r) { return r.json(); }).then(function (told) {
      var texts = [["request", told.request === null ? "no longer kept" : JSON.stringify(told.request, null, 2)],
        ["headers", JSON.stringify(told.headers, null, 2)],
        ["whole reply", (told.parts || []).map(function (part) { return (part.name ? part.name + ": " : "") + part.text; }).join("\n")],
        ["as curl", told.curl]];
      texts.forEach(function (pair) { if (pair[1]) { details.whole.append(make("dt", {}, pair[0]), make("dd", {}, pair[1])); } });
    }).catch(function (error) { details.whole.append(make("dt", {}, "request"), make("dd", {}, error.message)); });
  }

  function wanted(entry) {
    var text = $("by-text").value.toLowerCase(), state = $("by-status").value.trim();
    var said = [entry.user, entry.system, entry.reply, entry.error, entry.model, entry.rule, entry.fault];
    entry.calls.forEach(function (one) { said.push(one.name, one.arguments); });
    return entry.path.includes($("by-path").value.trim()) && (!state || [String(entry.status), entry.outcome].some(function (one) {
      return one.startsWith(state);
    })) && said.some(function (one) { return (one || "").toLowerCase().includes(text); });
  }
  function filter() {
    Array.from($("requests").children).forEach(function (row) { row.hidden = !wanted(requests.get(Number(row.dataset.number))); });
  }

  function causes(entry) {
    var told = make("td", { class: "left" });
    var source = entry.source || entry.rule;
    if (source) { told.append(make("span", { title: entry.rule || source }, source.replace(/^(script rule ).*\//, "$1"))); }
    if (source && entry.fault) { told.append(", "); }
    if (entry.fault) { told.append(make("span", { class: "warn", title: "fault" }, entry.fault)); }
    return told;
  }

  function say(text) { $("said").textContent = text; }
  function act(promise, text) { promise.then(function () { say(text); }, function (error) { say(error.message); }); }

  function definitions(texts) {
    var list = make("dl", {});
    texts.forEach(function (one) { list.append(make("dt", {}, one.name), make("dd", {}, one.help.replaceAll("`", ""))); });
    return list;
  }

  async function loadFaultKinds() {
    if ($("fault").options.length) { return; }
    var told = await call("GET", "/llmirage/faults").then(function (r) { return r.json(); });
    told.kinds.forEach(function (kind) { faultKinds[kind.name] = kind; $("fault").append(make("option", { value: kind.name }, kind.name)); });
    $("conditions").replaceChildren(definitions(told.conditions));
    showFaultKind();
    $("fault-form").hidden = false;
  }
  function showFaultKind() {
    var kind = faultKinds[$("fault").value];
    $("fault-json").value = JSON.stringify(kind.example);
    $("fault-help").textContent = kind.help.replaceAll("`", "");
    $("parameters").replaceChildren(definitions(kind.parameters));
  }

  function showFaults(faults) {
    var version = JSON.stringify(faults);
    if (version === shownFaults) { return; }
    shownFaults = version;
    $("faults").replaceChildren(...faults.map(function (fault) {
      var given = Object.entries(fault).filter(function (pair) {
        return pair[1] !== null && !["id", "kind", "happened", "source"].includes(pair[0]);
      }).map(function (pair) { return pair[0] + ": " + pair[1]; }).join(", ");
      var remove = make("button", { type: "button", "aria-label": "Remove fault " + fault.id }, "Remove");
      remove.addEventListener("click", function () { act(call("DELETE", "/llmirage/faults/" + fault.id), "Fault " + fault.id + " is removed."); });
      var times = fault.happened === 1 ? "once" : count(fault.happened) + " times";
      return make("li", { "data-id": fault.id }, remove, make("span", {}, make("strong", {}, fault.kind), " " + given),
        make("span", { class: "muted" }, "happened " + times + (fault.source ? ", from " + fault.source : "")));
    }));
  }

  $("login").addEventListener("submit", function (event) { event.preventDefault(); key = $("key").value; keep(key); watch(); });
  $("speed-form").addEventListener("submit", function (event) {
    event.preventDefault();
    act(call("POST", "/llmirage/speed", { speed: Number($("speed").value) }), "Speed is " + $("speed").value + " from now on.");
    $("speed").blur();
  });
  $("reset").addEventListener("click", function () { act(call("POST", "/reset_prefix_cache"), "The prefix caches are empty."); });
  $("fault").addEventListener("change", showFaultKind);
  $("fault-json").addEventListener("keydown", function (event) {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("fault-form").requestSubmit(); }
  });
  $("fault-form").addEventListener("submit", function (event) {
    event.preventDefault();
    var fault;
    try { fault = JSON.parse($("fault-json").value); } catch (error) { say("The parameters are not JSON: " + error.message); return; }
    act(call("POST", "/llmirage/faults", fault), "The fault is added.");
  });
  $("filters").addEventListener("input", filter);
  watch();
})();
