"""The part of NVIDIA's ncu_report that labkit uses, over plain data: what a test says that Nsight Compute counted."""

import json
import math

from labkit import ncu_reading, ncu_reports

NOT_COUNTED = math.nan


class Metric:
    def __init__(self, name, value, unit=""):
        self._name, self._value, self._unit = name, value, unit

    def value(self, idx=None):
        return self._value

    def unit(self):
        return self._unit


class Domain:
    def __init__(self, labels):
        self._labels = labels

    def push_pop_ranges(self):
        return tuple(self._labels)


class State:
    def __init__(self, labels):
        self._labels = labels

    def domains(self):
        return (0,)

    def domain_by_id(self, domain):
        return Domain(self._labels)


class Action:
    """labels: the NVTX ranges that it was in; None where the report holds none. metrics: {name: value, or (value, unit)}."""

    def __init__(self, name, labels, metrics):
        self._name, self.labels = name, labels
        self._metrics = {key: Metric(key, *(value if isinstance(value, tuple) else (value,))) for key, value in metrics.items()}

    def name(self, base=None):
        return self._name

    def nvtx_state(self):
        return None if self.labels is None else State(self.labels)

    def metric_names(self):
        return tuple(self._metrics)

    def metric_by_name(self, name):
        return self._metrics.get(name)


class Range:
    def __init__(self, actions):
        self._actions = actions

    def num_actions(self):
        return len(self._actions)

    def action_by_idx(self, idx):
        return self._actions[idx]


class Context:
    def __init__(self, ranges):
        self._ranges = ranges

    def num_ranges(self):
        return len(self._ranges)

    def range_by_idx(self, idx):
        return Range(self._ranges[idx])


class Module:
    """In place of the module: each file holds `ranges`, a list of lists of Actions; of them those that `holds` chooses, a
    function of the file's bytes and an Action.
    """

    def __init__(self, *ranges, holds=lambda content, action: True):
        self.ranges, self.holds, self.loaded = ranges, holds, []

    def load_report(self, file_name):
        with open(file_name, "rb") as file:
            content = file.read()
        self.loaded.append((file_name, content))
        return Context([[action for action in actions if self.holds(content, action)] for actions in self.ranges])


def read_in_place(monkeypatch, *ranges, **options):
    """From here on `labkit.ncu_reports` reads these ranges, lists of Actions, from every file; returns the module."""
    module = Module(*ranges, **options)
    monkeypatch.setattr(ncu_reports, "in_a_new_process",
                        lambda name, path, timeout: json.loads(json.dumps(ncu_reading.launches(module, path), allow_nan=False)))
    return module
