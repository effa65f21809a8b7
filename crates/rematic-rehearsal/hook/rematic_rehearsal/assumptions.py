"""What a rehearsal assumes where values would decide; each is told in the answer, with the lines where it was needed."""

from rematic_rehearsal import places, report

# Times that the line of an assumption is looked up, and lines of it that are told.
_LOOKED_UP = 200
_LINES = 5
_made = {}


def assume(text, line=True):
    """Tells an assumption, and the script's line that needs it."""
    known = _made.get(text)
    if known is None:
        known = _made[text] = {"left": _LOOKED_UP, "lines": []}
        new = True
    else:
        new = False
    if line and known["left"] > 0:
        known["left"] -= 1
        here = places.here()
        if here is not None and here not in known["lines"] and len(known["lines"]) < _LINES:
            known["lines"].append(here)
            new = True
    if new:
        report.write(assumed=[{"text": told, "lines": made["lines"]} for told, made in _made.items()])


def not_packed(masking):
    """transformers asks the device whether several sequences are packed into one; zeros would mean yes."""
    if hasattr(masking, "find_packed_sequence_indices"):
        def none_packed(*_arguments, **_keywords):
            assume("sequences are not packed (transformers asks the positions)", line=False)

        masking.find_packed_sequence_indices = none_packed
