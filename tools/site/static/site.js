// What scrolls sideways can be scrolled by keyboard; what fits is no stop on the way.
function reachWhatScrolls() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .text_html")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachWhatScrolls);
addEventListener("resize", reachWhatScrolls);
