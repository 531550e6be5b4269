"""`dnc explain`: facts of a build, gathered once (`facts`, `memory`), and two renderings: text and a page."""
