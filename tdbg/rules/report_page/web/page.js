// The report of a run as a file: its data stand in the page.
buildReport(document.getElementById("report"), JSON.parse(document.getElementById("data").textContent));
document.documentElement.dataset.drawn = "yes";
