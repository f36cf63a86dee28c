"""The gallery of mechanisms on the site: cards with pictures, and filters."""
