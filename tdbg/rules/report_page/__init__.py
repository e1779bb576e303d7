"""The report of a run as one HTML file: verdict, findings, lanes of ranks, curves, environment, cost."""
