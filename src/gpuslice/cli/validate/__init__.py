"""`gpuslice validate`: what is wrong with manifests, before they are applied."""
