"""Side-by-side timings that anyone can rerun."""
