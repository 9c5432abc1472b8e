"""Pages and pictures: `view` shows a lake in the browser, `page` reports on runs."""
