"""The course as static pages."""
