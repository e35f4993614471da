"""Estimators for scikit-learn (extra `sklearn`), thin over the functions of kernax."""
