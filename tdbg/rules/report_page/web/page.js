// The report of a run as a file: its data stand in the page.
const at = id => document.getElementById(id), data = JSON.parse(at("data").textContent);
buildReport(at("report"), data);
document.documentElement.dataset.drawn = "yes";
