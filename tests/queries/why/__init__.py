"""Why a job stands where it stands: every reason, on both engines."""
