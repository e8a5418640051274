"""Jobs over archives: trace, report, reconcile."""
