"""What several methods share: prototypes, anchors, exemplars, propagated features."""
