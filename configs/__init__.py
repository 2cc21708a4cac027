"""Experiments, one YAML file each."""
