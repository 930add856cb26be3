// The reader's system decides the theme until the button has been used.
(function () {
  "use strict";
  var root = document.documentElement;
  var themes = ["auto", "light", "dark"];
  var button = document.getElementById("theme");
  function recall() { try { return localStorage.getItem("llmirage-theme"); } catch (e) { return null; } }
  function show(theme) {
    if (themes.indexOf(theme) < 1) { theme = "auto"; root.removeAttribute("data-theme"); } else { root.dataset.theme = theme; }
    button.textContent = "Theme: " + theme;
    return theme;
  }
  var theme = show(root.dataset.theme || recall());
  button.hidden = false;
  button.addEventListener("click", function () {
    theme = show(themes[(themes.indexOf(theme) + 1) % 3]);
    try { localStorage.setItem("llmirage-theme", theme); } catch (e) { /* a page from a file may not store */ }
  });
})();
