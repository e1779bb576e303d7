// The page that `tdbg trace show --html` writes: what trace.js draws.
buildTraces(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent), document.getElementById("trace"));
document.documentElement.dataset.drawn = "yes";
