"""Pages and pictures of what is on disk: `view` looks into a lake, `page` tells of runs."""
