"""The checker: what clients did, the rules, the verdict and its report (../README.md)."""
