// Tooltips, the values under the pointer and the toggles. The page reads well without any of it.
(function () {
  "use strict";
  document.querySelectorAll("button[data-toggles]").forEach(function (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", function () {
      var on = document.getElementById(toggle.dataset.of).classList.toggle(toggle.dataset.toggles);
      toggle.setAttribute("aria-pressed", String(on));
    });
  });

  // A chart's <title> elements become tooltips that appear at once.
  document.querySelectorAll("svg.chart title").forEach(function (title) {
    title.parentNode.setAttribute("data-tip", title.textContent);
    title.remove();
  });

  var tip = document.createElement("div");
  tip.id = "tip";
  document.body.appendChild(tip);
  var cursor = null;

  function hide() {
    tip.style.display = "none";
    if (cursor) { cursor.remove(); cursor = null; }
  }

  function rowUnder(area, event) {
    if (!area.rows) { area.rows = JSON.parse(area.dataset.rows); }
    var svg = area.ownerSVGElement;
    var point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    var places = area.rows[0], best = 0;
    for (var i = 1; i < places.length; i++) {
      if (Math.abs(places[i] - point.x) < Math.abs(places[best] - point.x)) { best = i; }
    }
    var box = area.firstElementChild;
    if (!cursor || cursor.parentNode !== area) {
      if (cursor) { cursor.remove(); }
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
      cursor.setAttribute("class", "cursor");
      area.appendChild(cursor);
    }
    cursor.setAttribute("d", "M" + places[best] + " " + box.getAttribute("y") + "v" + box.getAttribute("height"));
    return area.rows[1][best].join("\n");
  }

  document.addEventListener("pointermove", function (event) {
    var target = event.target;
    if (!target.closest) { return; }
    var said = null, marked = target.closest("[data-tip]"), area = target.closest("g.hover");
    if (marked) { hide(); said = marked.getAttribute("data-tip"); } else if (area) { said = rowUnder(area, event); }
    if (!said) { hide(); return; }
    tip.textContent = said;
    tip.style.display = "block";
    var x = event.clientX + 14, y = event.clientY + 16;
    if (x + tip.offsetWidth > innerWidth - 6) { x = Math.max(6, event.clientX - tip.offsetWidth - 10); }
    if (y + tip.offsetHeight > innerHeight - 6) { y = Math.max(6, event.clientY - tip.offsetHeight - 12); }
    tip.style.left = x + "px";
    tip.style.top = y + "px";
  });
  document.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, true);
})();
