"""The intermediate representations; everything here is immutable (`attrs.frozen`)."""
