"""`tdbg view`: runs in the browser, and the HTTP API that its pages use."""
