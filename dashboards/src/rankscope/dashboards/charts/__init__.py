"""What figures of several features share: colours, frame, heat maps, reduction to what fits a screen."""
