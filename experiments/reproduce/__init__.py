"""From figures to a page: running, drawing, judging, committing, the report."""
