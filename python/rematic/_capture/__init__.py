"""The parts of capture: what runs (`recorder`), on what (`replica`), as on which device (`routing`), and with which
values (`values`)."""
