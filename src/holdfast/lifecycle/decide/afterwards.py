"""Rules for a job that has ended: notes on it, its dead letter, its retention."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide.change import Decision, change, refuse
from holdfast.lifecycle.record import Draft, Facts, Unchanged
from holdfast.lifecycle.states import Letter, Retention
from holdfast.lifecycle.transitions import Row


def late_result(record: Draft, row: Row, command: c.LateResult) -> Decision:
    """Note what a fenced or late sender reported; once for each attempt and sender."""
    late = f"{command.actor.attempt or 0}:{command.actor.name}"
    if late in record.late_results:
        return Unchanged(record)
    facts = Facts(
        late=late,
        late_state=command.state,
        error_code=command.error_code,
        result_ptr=command.result_ptr,
    )
    return change(record, row, command, facts=facts, body=command.body)


def compensated(record: Draft, row: Row, command: c.Compensated) -> Decision:
    """Note the job that undid it."""
    return change(record, row, command, facts=Facts(link=command.link))


def redriven(record: Draft, row: Row, command: c.Redriven) -> Decision:
    """Note the job that its dead letter was submitted as; a settled letter only deliberately."""
    if record.letter is Letter.REDRIVEN and not command.again:
        return Unchanged(record)
    if record.letter is Letter.DISCARDED and not command.again:
        return refuse("letter_discarded", record, "has a discarded letter; redrive it with again")
    facts = Facts(link=command.link, letter=Letter.REDRIVEN)
    return change(record, row, command, facts=facts, submits=command.submits)


def discarded(record: Draft, row: Row, command: c.Discarded) -> Decision:
    """Put its open dead letter away."""
    if record.letter is None:
        return refuse("no_dead_letter", record, "has no dead letter")
    if record.letter is Letter.DISCARDED:
        return Unchanged(record)
    if record.letter is Letter.REDRIVEN:
        return refuse("letter_redriven", record, "was redriven; there is nothing to put away")
    return change(record, row, command, facts=Facts(letter=Letter.DISCARDED))


def clean(record: Draft, row: Row, command: c.Clean) -> Decision:
    """Start to delete its logs and artifacts."""
    if record.retention is Retention.CLEANING:
        return Unchanged(record)
    return change(record, row, command, facts=Facts(retention=Retention.CLEANING))


def cleaned(record: Draft, row: Row, command: c.Cleaned) -> Decision:
    """Record that they are gone."""
    if record.retention is not Retention.CLEANING:
        return refuse("not_cleaning", record, "must be cleaning before it is cleaned")
    return change(record, row, command, facts=Facts(retention=Retention.CLEANED))
