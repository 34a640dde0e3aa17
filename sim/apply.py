"""Put the controller's entries into an embedded switch of this process, without P4Runtime between them."""

from __future__ import annotations

from switchreduce.controller.entities import Action, MulticastGroup, TableEntry
from switchreduce.controller.entries import Stages
from switchreduce.sim.target import Entry, Exact, Lpm, Switch


def apply(switch: Switch, stages: Stages) -> None:
    """Carry out `stages` in order. Raises KeyError for what the program or the switch does not have."""
    for stage in stages:
        for update in stage:
            if isinstance(update.entity, MulticastGroup):
                _apply_group(switch, update.action, update.entity)
            else:
                _apply_entry(switch, update.action, update.entity)


def _apply_group(switch: Switch, action: Action, group: MulticastGroup) -> None:
    if action is Action.DELETE:
        switch.delete_multicast_group(group.group_id)
    else:
        switch.set_multicast_group(group.group_id, [(r.port, r.instance) for r in group.replicas])


def _apply_entry(switch: Switch, action: Action, entry: TableEntry) -> None:
    table = switch.tables[entry.table]
    key: list[Exact | Lpm] = []
    for match_field in table.spec.match:
        value = entry.match[match_field.name]
        key.append(Lpm(*value) if isinstance(value, tuple) else Exact(value))
    if action is Action.DELETE:
        table.delete(tuple(key), 0)
        return
    names = [name for name, _ in table.spec.actions[entry.action]]
    new = Entry(tuple(key), entry.action, tuple(entry.params[name] for name in names))
    if action is Action.INSERT:
        table.insert(new)
    else:
        table.modify(new)
