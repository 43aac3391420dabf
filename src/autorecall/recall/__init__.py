"""Recall: inputs on which student and teacher disagree most (lines 6-8 of Algorithm 1)."""
