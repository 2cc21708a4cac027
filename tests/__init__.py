"""The tests. A package, since an installed dependency (draccus) also brings one called `tests`."""
