module magnetar.local/pause

go 1.21
