"""What tests share: servers, factories, plugins. No tests here."""
