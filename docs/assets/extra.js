// What is wider than the window scrolls sideways: by keyboard, too, and under a name.
const WIDE = { ".md-typeset__scrollwrap": "Table", ".formula": "Formula", ".drawing": "Figure" };

function nameWhatScrolls() {
  for (const [selector, name] of Object.entries(WIDE)) {
    for (const element of document.querySelectorAll(selector)) {
      if (element.scrollWidth > element.clientWidth) {
        element.tabIndex = 0;
        element.setAttribute("role", "group");
        element.setAttribute("aria-label", `${name}, scrolls sideways`);
      } else {
        for (const attribute of ["tabindex", "role", "aria-label"]) element.removeAttribute(attribute);
      }
    }
  }
}

// The theme puts tables into their frames when it likes.
new MutationObserver(nameWhatScrolls).observe(document.body, { childList: true, subtree: true });
window.addEventListener("resize", nameWhatScrolls);
nameWhatScrolls();
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
