"""The documented checks of tools that are given model and batch in code, each as a training, and tdbg's answer beside theirs."""
