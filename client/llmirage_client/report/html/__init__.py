"""The report as one HTML page that needs nothing but itself: charts are SVG drawn here, in the colours of its theme."""
